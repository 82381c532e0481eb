# jitload_generate_cubin and jitload_embed_cubin, also under tvm-ffi's names. docs/cpp.md says what each takes.

if(POLICY CMP0116)
  cmake_policy(SET CMP0116 NEW)
endif()

function(jitload_internal_check_arguments caller unknown)
  if(NOT jitload_PYTHON)
    message(FATAL_ERROR "${caller}: call find_package(jitload CONFIG REQUIRED) in this directory or above it")
  endif()
  if(unknown)
    message(FATAL_ERROR "${caller}: what is '${unknown}'?")
  endif()
  foreach(name IN LISTS ARGN)
    if(NOT ARG_${name})
      message(FATAL_ERROR "${caller}: ${name} is required")
    endif()
  endforeach()
endfunction()

# A file that is there, or that the build makes.
function(jitload_internal_input out path)
  get_filename_component(in_source "${path}" ABSOLUTE)
  get_filename_component(in_binary "${path}" ABSOLUTE BASE_DIR "${CMAKE_CURRENT_BINARY_DIR}")
  if(EXISTS "${in_source}")
    set(${out} "${in_source}" PARENT_SCOPE)
  else()
    set(${out} "${in_binary}" PARENT_SCOPE)
  endif()
endfunction()

# ---- CUDA source to a cubin --------------------------------------------------------------------------------------

function(jitload_internal_generate_cubin caller)
  set(lists KERNELS INCLUDE_DIRECTORIES OPTIONS DEPENDS)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "NVCC" "OUTPUT;SOURCE;ARCH" "${lists}")
  jitload_internal_check_arguments(${caller} "${ARG_UNPARSED_ARGUMENTS}" OUTPUT SOURCE)
  if(NOT ARG_ARCH)
    set(ARG_ARCH native)
  endif()
  jitload_internal_input(source "${ARG_SOURCE}")
  get_filename_component(output "${ARG_OUTPUT}" ABSOLUTE BASE_DIR "${CMAKE_CURRENT_BINARY_DIR}")
  jitload_internal_depfile(depfile target depends "${output}" "${source}")
  set(dirs)
  foreach(dir IN LISTS ARG_INCLUDE_DIRECTORIES)
    get_filename_component(dir "${dir}" ABSOLUTE)
    list(APPEND dirs "${dir}")
  endforeach()
  if(ARG_NVCC OR jitload_CUBIN_COMPILER STREQUAL "nvcc")
    if(ARG_KERNELS)
      message(FATAL_ERROR "${caller}: KERNELS is for NVRTC; with nvcc, instantiate templates in the source")
    endif()
    jitload_internal_find_nvcc(nvcc ${caller})
    list(TRANSFORM dirs PREPEND "-I")
    set(command "${nvcc}" -cubin "-arch=${ARG_ARCH}" ${ARG_OPTIONS} ${dirs} -MD -MT "${target}" -MF "${output}.d" "${source}" -o "${output}")
  else()
    set(command "${jitload_PYTHON}" -m jitload.utils.generate_cubin --output "${output}" --source "${source}" --arch "${ARG_ARCH}")
    list(APPEND command --depfile "${output}.d" --depfile-target "${target}")
    foreach(kernel IN LISTS ARG_KERNELS)
      list(APPEND command --kernel "${kernel}")
    endforeach()
    foreach(dir IN LISTS dirs)
      list(APPEND command --include-dir "${dir}")
    endforeach()
    list(APPEND command -- ${ARG_OPTIONS})
  endif()
  get_filename_component(directory "${output}" DIRECTORY)
  file(MAKE_DIRECTORY "${directory}")
  add_custom_command(
    OUTPUT "${output}"
    COMMAND ${command}
    DEPENDS "${source}" ${ARG_DEPENDS}
    ${depends}
    COMMENT "Compiling ${ARG_SOURCE} to a cubin (${ARG_ARCH})"
    VERBATIM
  )
endfunction()

# How the generator learns which headers were read: what to hand to add_custom_command, and the depfile's target.
function(jitload_internal_depfile depfile_out target_out depends_out output source)
  set(target "${output}")
  set(depends DEPFILE "${output}.d")
  if(CMAKE_VERSION VERSION_LESS 3.20)
    if(CMAKE_GENERATOR MATCHES "Ninja") # which knows files below the build directory by their relative names
      file(RELATIVE_PATH relative "${CMAKE_BINARY_DIR}" "${output}")
      if(NOT relative MATCHES "^\\.\\./")
        set(target "${relative}")
      endif()
    else()
      set(depends IMPLICIT_DEPENDS CXX "${source}")
    endif()
  elseif(CMAKE_GENERATOR MATCHES "Visual Studio" AND CMAKE_VERSION VERSION_LESS 3.21)
    set(depends)
  endif()
  set(${depfile_out} "${output}.d" PARENT_SCOPE)
  set(${target_out} "${target}" PARENT_SCOPE)
  set(${depends_out} "${depends}" PARENT_SCOPE)
endfunction()

function(jitload_internal_find_nvcc out caller)
  set(nvcc "${CMAKE_CUDA_COMPILER}")
  if(NOT nvcc AND DEFINED ENV{JITLOAD_NVCC})
    set(nvcc "$ENV{JITLOAD_NVCC}")
  endif()
  if(NOT nvcc)
    find_program(jitload_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATH_SUFFIXES bin)
    set(nvcc "${jitload_NVCC}")
  endif()
  if(NOT nvcc)
    message(FATAL_ERROR "${caller}: NVCC was asked for, and there is no nvcc: set JITLOAD_NVCC or CUDA_HOME, or leave NVCC out")
  endif()
  set(${out} "${nvcc}" PARENT_SCOPE)
endfunction()

# ---- cubins into libraries ---------------------------------------------------------------------------------------

function(jitload_internal_embed_cubin caller)
  set(lists CUBIN NAME INCLUDE_DIRECTORIES OPTIONS DEPENDS)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "TARGET;OUTPUT;SOURCE" "${lists}")
  jitload_internal_check_arguments(${caller} "${ARG_UNPARSED_ARGUMENTS}" CUBIN NAME)
  list(LENGTH ARG_CUBIN cubins)
  list(LENGTH ARG_NAME names)
  if(NOT cubins EQUAL names)
    message(FATAL_ERROR "${caller}: ${cubins} cubins and ${names} names")
  endif()
  set(options)
  set(files)
  foreach(cubin name IN ZIP_LISTS ARG_CUBIN ARG_NAME)
    if(NOT name MATCHES "^[A-Za-z_][A-Za-z0-9_]*$")
      message(FATAL_ERROR "${caller}: NAME '${name}' is no C++ name, and TVM_FFI_EMBED_CUBIN(${name}) takes one")
    endif()
    jitload_internal_input(cubin "${cubin}")
    list(APPEND files "${cubin}")
    list(APPEND options --cubin "${cubin}" --name "${name}")
  endforeach()
  if(ARG_TARGET)
    jitload_internal_embed_in_target()
  else()
    jitload_internal_check_arguments(${caller} "" OUTPUT SOURCE)
    get_filename_component(output "${ARG_OUTPUT}" ABSOLUTE BASE_DIR "${CMAKE_CURRENT_BINARY_DIR}")
    jitload_internal_embed_in_object()
    foreach(name IN LISTS ARG_NAME)
      set(${name}_EMBEDDED_OBJ "${output}" PARENT_SCOPE)
    endforeach()
  endif()
endfunction()

# One more source file for the target.
function(jitload_internal_embed_in_target)
  if(NOT TARGET "${ARG_TARGET}")
    message(FATAL_ERROR "${caller}: there is no target '${ARG_TARGET}'")
  endif()
  list(JOIN ARG_NAME "_" suffix)
  set(file "${CMAKE_CURRENT_BINARY_DIR}/${ARG_TARGET}_${suffix}_cubin.cc")
  add_custom_command(
    OUTPUT "${file}"
    COMMAND "${jitload_PYTHON}" -m jitload.utils.cubin_source --output "${file}" ${options}
    DEPENDS ${files} ${ARG_DEPENDS}
    COMMENT "Embedding cubins into ${ARG_TARGET} (${ARG_NAME})"
    VERBATIM
  )
  # The compiler would not see in the assembler text what link-time optimisation must know.
  set_source_files_properties("${file}" PROPERTIES COMPILE_OPTIONS "-fno-lto" SKIP_PRECOMPILE_HEADERS TRUE SKIP_UNITY_BUILD_INCLUSION TRUE)
  target_sources("${ARG_TARGET}" PRIVATE "${file}")
endfunction()

# One object of a source and its cubins: tvm-ffi's form.
function(jitload_internal_embed_in_object)
  jitload_internal_input(source "${ARG_SOURCE}")
  get_filename_component(base "${output}" NAME_WE)
  string(MD5 digest "${output}")
  string(SUBSTRING "${digest}" 0 8 digest)
  string(MAKE_C_IDENTIFIER "jitload_${base}_${digest}" object)
  add_library(${object} OBJECT "${source}")
  set_target_properties(${object} PROPERTIES POSITION_INDEPENDENT_CODE ON INTERPROCEDURAL_OPTIMIZATION OFF)
  target_include_directories(${object} BEFORE PRIVATE ${jitload_OWN_INCLUDE_DIRS})
  target_include_directories(${object} PRIVATE ${ARG_INCLUDE_DIRECTORIES})
  target_compile_options(${object} PRIVATE ${ARG_OPTIONS})
  target_link_libraries(${object} PRIVATE jitload::launcher)
  foreach(package IN ITEMS tvm_ffi::header tvm_ffi_header CUDA::cudart)
    target_link_libraries(${object} PRIVATE $<TARGET_NAME_IF_EXISTS:${package}>)
  endforeach()
  add_custom_command(
    OUTPUT "${output}"
    COMMAND "${jitload_PYTHON}" -m jitload.utils.embed_cubin --output-obj "${output}" --input-obj
            "$<TARGET_OBJECTS:${object}>" ${options}
    DEPENDS ${object} "$<TARGET_OBJECTS:${object}>" ${files} ${ARG_DEPENDS}
    COMMENT "Embedding cubins into ${base} (${ARG_NAME})"
    VERBATIM
  )
endfunction()

# ---- the names -----------------------------------------------------------------------------------------------------

macro(jitload_generate_cubin)
  jitload_internal_generate_cubin(jitload_generate_cubin ${ARGV})
endmacro()

macro(jitload_embed_cubin)
  jitload_internal_embed_cubin(jitload_embed_cubin ${ARGV})
endmacro()

macro(tvm_ffi_generate_cubin)
  jitload_internal_generate_cubin(tvm_ffi_generate_cubin ${ARGV})
endmacro()

macro(tvm_ffi_embed_cubin)
  jitload_internal_embed_cubin(tvm_ffi_embed_cubin ${ARGV})
endmacro()
