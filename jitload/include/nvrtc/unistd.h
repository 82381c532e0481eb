// Nothing of <unistd.h> works in device code. The include line is let pass, as kernel files often
// carry it for their host code.
