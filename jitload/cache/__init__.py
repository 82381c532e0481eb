"""The cache of built libraries: keys, entries, locks, and the places (tiers) where an entry is looked for."""
