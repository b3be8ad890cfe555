"""People and programs outside: HTTP, Ray handles and the command line."""
