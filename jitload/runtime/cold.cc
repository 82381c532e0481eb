/* The parts of the runtime off the fast path. They are one translation unit, because parsing the headers takes longer
 * than compiling the files.
 */
#include "arguments.cc"
#include "structures.cc"
#include "argument_errors.cc"
#include "launch_errors.cc"
#include "cpu_launch.cc"
#include "choice.cc"
