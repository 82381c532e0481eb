// Nothing of <cudaTypedefs.h> works in device code: it names the types of host functions.
