"""A plug-in of dsfix; `patches` holds one module per bug."""
