// Nothing of <omp.h> works in device code. Its include line is let pass, because kernel files often carry it for host code.
