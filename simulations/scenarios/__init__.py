"""The scenarios: how clients and server work together. Each is one file and object here, and a folder in layers that need one."""
