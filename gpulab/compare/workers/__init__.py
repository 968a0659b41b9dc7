"""The processes in which backends compute, one each: started, asked, ended."""
