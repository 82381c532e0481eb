"""Works out from a kernel's PTX which elements of its tensors a launch touches."""
