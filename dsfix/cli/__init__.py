"""The command line: one module per command; nothing here is loaded by `import dsfix`."""
