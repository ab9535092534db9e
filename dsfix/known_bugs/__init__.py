"""The known bugs of DeepSpeed, the releases that have them, and how dsfix handles each."""
