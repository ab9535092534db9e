pytest_plugins = ["dsfix.testing"]
