# find_package(jitload CONFIG) offers cubins from CUDA source without a toolkit, cubins in libraries, and the header of
# the launcher:
#
#   jitload_generate_cubin(OUTPUT kernel.cubin SOURCE kernel.cu ARCH sm_90a)
#   jitload_embed_cubin(TARGET mylib CUBIN kernel.cubin NAME my_kernels)
#   target_link_libraries(mylib PRIVATE jitload::launcher)
#
# CMake finds this package with -Djitload_ROOT="$(jitload-config --cmakedir)". docs/cpp.md describes the arguments
# of the functions.

if(CMAKE_VERSION VERSION_LESS 3.20)
  set(jitload_FOUND FALSE)
  set(jitload_NOT_FOUND_MESSAGE "jitload needs CMake 3.20 or newer, and this is ${CMAKE_VERSION}.")
  return()
endif()

# ---- Python: the one that was chosen, else that of the environment which this file lies in, else what CMake finds ----

if(NOT Python_EXECUTABLE)
  set(_jitload_python)
  if(CMAKE_CURRENT_LIST_DIR MATCHES "^(.+)/lib(64)?/python3[^/]*/site-packages/jitload/cmake$")
    set(_jitload_python "${CMAKE_MATCH_1}/bin/python3")
  endif()
  if(_jitload_python AND EXISTS "${_jitload_python}")
    # The CMake package of tvm-ffi also reads this variable.
    set(Python_EXECUTABLE "${_jitload_python}")
  else()
    if(NOT DEFINED Python_FIND_VIRTUALENV)
      set(Python_FIND_VIRTUALENV FIRST)
    endif()
    find_package(Python COMPONENTS Interpreter QUIET)
  endif()
endif()
set(jitload_PYTHON "${Python_EXECUTABLE}")
execute_process(
  COMMAND "${jitload_PYTHON}" -m jitload.cmake.config --includedirs
  RESULT_VARIABLE _jitload_status
  OUTPUT_VARIABLE jitload_INCLUDE_DIRS
  ERROR_VARIABLE _jitload_error
  OUTPUT_STRIP_TRAILING_WHITESPACE
)
if(NOT _jitload_status EQUAL 0)
  set(jitload_FOUND FALSE)
  set(jitload_NOT_FOUND_MESSAGE
      "the Python '${jitload_PYTHON}' has no working jitload:\n${_jitload_error}\nName another one with -DPython_EXECUTABLE=…"
  )
  return()
endif()

# ---- jitload::launcher: the headers; nothing of CUDA is linked ---------------------------------------------------

list(GET jitload_INCLUDE_DIRS 0 1 jitload_OWN_INCLUDE_DIRS)
list(SUBLIST jitload_INCLUDE_DIRS 2 -1 _jitload_tvm_ffi_dirs)
if(NOT TARGET jitload::launcher)
  add_library(jitload::launcher INTERFACE IMPORTED)
  target_compile_features(jitload::launcher INTERFACE cxx_std_17)
  target_link_libraries(jitload::launcher INTERFACE ${CMAKE_DL_LIBS} pthread)
  # Some of jitload's headers have the names of tvm-ffi's headers, and must be found first. Compilers search directories
  # of -I before those of -isystem, which CMake normally uses for the headers of packages.
  if(CMAKE_VERSION VERSION_LESS 3.23)
    list(TRANSFORM jitload_OWN_INCLUDE_DIRS PREPEND "-I" OUTPUT_VARIABLE _jitload_options)
    target_compile_options(jitload::launcher INTERFACE ${_jitload_options})
    target_include_directories(jitload::launcher SYSTEM INTERFACE ${_jitload_tvm_ffi_dirs})
  else()
    target_include_directories(jitload::launcher INTERFACE ${jitload_OWN_INCLUDE_DIRS})
    set_target_properties(jitload::launcher PROPERTIES IMPORTED_NO_SYSTEM TRUE SYSTEM FALSE)
    add_library(jitload::tvm_ffi INTERFACE IMPORTED)
    target_include_directories(jitload::tvm_ffi INTERFACE ${_jitload_tvm_ffi_dirs})
    target_link_libraries(jitload::launcher INTERFACE jitload::tvm_ffi)
  endif()
endif()

include("${CMAKE_CURRENT_LIST_DIR}/functions.cmake")

# tvm-ffi's CMake package defines functions of the same names. If a project finds that package later, define jitload's
# functions again, because these need no toolkit.
function(_jitload_define_again _variable access)
  if(access STREQUAL "MODIFIED_ACCESS")
    include("${jitload_DIR}/functions.cmake")
  endif()
endfunction()
variable_watch(tvm_ffi_FOUND _jitload_define_again)
