"""What several commands print with: tables, JSON, progress, and the text of one command each."""
