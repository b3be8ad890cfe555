"""The command `justitia`: one file a command, all of them clients of the HTTP interface."""
