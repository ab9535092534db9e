"""docs/patches.md, and what the site shares with it: the judged cells, and phrases."""
