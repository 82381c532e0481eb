"""Launch expressions: parse them, check them and translate them to C++."""
