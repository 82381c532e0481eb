"""Shows what a loaded kernel consists of: its PTX, its machine code, and how well it fills a GPU."""
