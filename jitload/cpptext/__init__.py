"""Read C++ text: tokens, preprocessor directives, declarations and includes. Nothing here runs a compiler."""
