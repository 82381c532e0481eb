/* Without the class nvcuda::experimental::pipeline. */
#include <cuda_pipeline_primitives.h>
