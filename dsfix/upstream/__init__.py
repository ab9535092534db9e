"""Which bugs of DeepSpeed are known, which releases have them, and what dsfix has for each."""
