// Device code can use nothing of <errno.h>, which kernel files may include for their host code. It is a file because a
// header in memory would hide a project's own errno.h.
