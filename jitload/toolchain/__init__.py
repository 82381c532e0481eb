"""Where the tools of a build are, which versions they have, and a fingerprint of each for the cache key."""
