"""The cache of built libraries: keys, entries, locks, and the tiers in which an entry is looked for."""
