"""What a short text without a known message can mean: the problems and bugs whose words are closest to its own."""
