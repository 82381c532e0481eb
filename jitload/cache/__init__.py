"""The cache: keys, entries, locks, and the places where an entry may be."""
