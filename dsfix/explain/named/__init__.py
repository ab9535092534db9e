"""What is known of the options, functions and classes that a text names, whatever else it says."""
