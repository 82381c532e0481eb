# Defines jitload_generate_cubin, jitload_embed_cubin, and functions of tvm-ffi that do the same. docs/cpp.md describes
# their arguments.

# Without this policy, CMake warns about a depfile in a subdirectory, because Ninja would get its paths unchanged.
cmake_policy(SET CMP0116 NEW)

function(jitload_internal_check_arguments caller unknown)
  if(NOT jitload_PYTHON)
    message(FATAL_ERROR "${caller}: call find_package(jitload CONFIG REQUIRED) in this directory or above it")
  endif()
  if(unknown)
    message(FATAL_ERROR "${caller}: unknown argument: '${unknown}'")
  endif()
  foreach(name IN LISTS ARGN)
    if(NOT ARG_${name})
      message(FATAL_ERROR "${caller}: ${name} is required")
    endif()
  endforeach()
endfunction()

# Set `out` to the absolute path of an input file: in the source directory if it exists there, otherwise in the binary
# directory, where the build makes it.
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
  set(lists ARCH KERNELS INCLUDE_DIRECTORIES OPTIONS DEPENDS)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "FATBIN" "OUTPUT;SOURCE" "${lists}")
  jitload_internal_check_arguments(${caller} "${ARG_UNPARSED_ARGUMENTS}" OUTPUT SOURCE)
  if(NOT ARG_ARCH)
    set(ARG_ARCH native)
  endif()
  list(LENGTH ARG_ARCH archs)
  if(archs GREATER 1 AND NOT ARG_FATBIN)
    message(FATAL_ERROR "${caller}: a cubin is for one architecture, but ARCH has ${archs}; use FATBIN for several")
  endif()
  jitload_internal_input(source "${ARG_SOURCE}")
  get_filename_component(output "${ARG_OUTPUT}" ABSOLUTE BASE_DIR "${CMAKE_CURRENT_BINARY_DIR}")
  list(JOIN ARG_ARCH "," archs)
  set(command "${jitload_PYTHON}" -m jitload.cmake.generate_cubin --output "${output}" --source "${source}" --arch "${archs}"
              --depfile "${output}.d")
  set(what "a cubin")
  if(ARG_FATBIN)
    set(what "a fatbin")
    list(APPEND command --fatbin)
  endif()
  foreach(kernel IN LISTS ARG_KERNELS)
    list(APPEND command --kernel "${kernel}")
  endforeach()
  foreach(dir IN LISTS ARG_INCLUDE_DIRECTORIES)
    get_filename_component(dir "${dir}" ABSOLUTE)
    list(APPEND command --include-dir "${dir}")
  endforeach()
  list(APPEND command -- ${ARG_OPTIONS})
  get_filename_component(directory "${output}" DIRECTORY)
  file(MAKE_DIRECTORY "${directory}")
  add_custom_command(
    OUTPUT "${output}"
    COMMAND ${command}
    DEPENDS "${source}" ${ARG_DEPENDS}
    DEPFILE "${output}.d"
    COMMENT "Compiling ${ARG_SOURCE} to ${what} (${ARG_ARCH})"
    COMMAND_EXPAND_LISTS
    VERBATIM
  )
endfunction()

# ---- tvm-ffi's form: a target whose one object is the cubin or the fatbin ------------------------------------------

function(jitload_internal_binary_target caller kind target)
  cmake_parse_arguments(PARSE_ARGV 3 ARG "" "CUDA" "")
  jitload_internal_check_arguments(${caller} "${ARG_UNPARSED_ARGUMENTS}" CUDA)
  jitload_internal_architectures(archs ${caller} ${kind} ${CMAKE_CUDA_ARCHITECTURES})
  set(fatbin)
  if(kind STREQUAL "fatbin")
    set(fatbin FATBIN)
  endif()
  get_filename_component(name "${ARG_CUDA}" NAME_WE)
  set(output "${CMAKE_CURRENT_BINARY_DIR}/${target}/${name}.${kind}")
  # These are generator expressions, because target_compile_options() and similar commands may be called for the target
  # later.
  set(dirs "$<TARGET_PROPERTY:${target},INCLUDE_DIRECTORIES>")
  set(macros "$<TARGET_PROPERTY:${target},COMPILE_DEFINITIONS>")
  set(options "$<$<BOOL:${dirs}>:-I$<JOIN:${dirs},$<SEMICOLON>-I>>" "$<$<BOOL:${macros}>:-D$<JOIN:${macros},$<SEMICOLON>-D>>"
              "$<TARGET_PROPERTY:${target},COMPILE_OPTIONS>")
  jitload_internal_generate_cubin(${caller} ${fatbin} OUTPUT "${output}" SOURCE "${ARG_CUDA}" ARCH ${archs} OPTIONS ${options})
  add_library(${target} OBJECT "${output}")
  set_source_files_properties("${output}" PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  set_target_properties(
    ${target} PROPERTIES LINKER_LANGUAGE CXX COMPILE_OPTIONS "" COMPILE_DEFINITIONS "" INCLUDE_DIRECTORIES ""
                         JITLOAD_BINARY "${output}"
  )
  add_custom_target(${target}_bin ALL DEPENDS "${output}")
  add_dependencies(${target} ${target}_bin)
endfunction()

# Set `out` to the names of the architectures in CMAKE_CUDA_ARCHITECTURES: sm_80 for 80-real and compute_80, which is PTX,
# for 80-virtual. As in CMake, 80 means both in a fatbin. With a suffix, PTX would run on no other GPU and is left out.
function(jitload_internal_architectures out caller kind)
  set(archs)
  foreach(arch IN LISTS ARGN)
    if(arch MATCHES "^(sm_)?([0-9]+[af]?)(-real)?$")
      list(APPEND archs "sm_${CMAKE_MATCH_2}")
      if(kind STREQUAL "fatbin" AND arch MATCHES "^[0-9]+$")
        list(APPEND archs "compute_${arch}")
      endif()
    elseif(arch MATCHES "^([0-9]+[af]?)-virtual$" AND kind STREQUAL "fatbin")
      list(APPEND archs "compute_${CMAKE_MATCH_1}")
    elseif(arch STREQUAL "native")
      list(APPEND archs native)
    else()
      message(FATAL_ERROR "${caller}: CMAKE_CUDA_ARCHITECTURES has '${arch}': name architectures such as 80, 80-real or 90a, and in a fatbin also 80-virtual")
    endif()
  endforeach()
  set(${out} "${archs}" PARENT_SCOPE)
endfunction()

# ---- cubins into libraries ---------------------------------------------------------------------------------------

function(jitload_internal_embed_cubin caller)
  set(lists CUBIN NAME INCLUDE_DIRECTORIES OPTIONS DEPENDS)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "TARGET;OUTPUT;SOURCE" "${lists}")
  jitload_internal_check_arguments(${caller} "${ARG_UNPARSED_ARGUMENTS}" CUBIN NAME)
  list(LENGTH ARG_CUBIN cubins)
  list(LENGTH ARG_NAME names)
  if(NOT cubins EQUAL names)
    message(FATAL_ERROR "${caller}: there are ${cubins} cubins but ${names} names: give one NAME for each cubin")
  endif()
  set(options)
  set(files)
  foreach(cubin name IN ZIP_LISTS ARG_CUBIN ARG_NAME)
    if(NOT name MATCHES "^[A-Za-z_][A-Za-z0-9_]*$")
      message(FATAL_ERROR "${caller}: NAME '${name}' is not a C++ name, which TVM_FFI_EMBED_CUBIN(${name}) needs")
    endif()
    if(NOT cubin MATCHES "^\\$<")
      jitload_internal_input(cubin "${cubin}")
    endif()
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

# Embed the cubin or fatbin of another target in `target`. This is the newer of tvm-ffi's two functions.
function(jitload_internal_embed_bin_into caller target)
  cmake_parse_arguments(PARSE_ARGV 2 ARG "" "SYMBOL;BIN" "")
  jitload_internal_check_arguments(${caller} "${ARG_UNPARSED_ARGUMENTS}" BIN SYMBOL)
  # $<TARGET_OBJECTS:…> leaves out the cubin of an add_tvm_ffi_cubin() target, because CMake did not compile this file.
  # The target's property JITLOAD_BINARY has its path.
  if(ARG_BIN MATCHES "^\\$<TARGET_OBJECTS:([^<>]+)>$")
    set(source "${CMAKE_MATCH_1}")
    if(NOT TARGET "${source}")
      message(FATAL_ERROR "${caller}: there is no target '${source}'")
    endif()
    get_target_property(binary "${source}" JITLOAD_BINARY)
    if(binary)
      set(ARG_BIN "${binary}")
    endif()
  endif()
  jitload_internal_embed_cubin(${caller} TARGET "${target}" CUBIN "${ARG_BIN}" NAME "${ARG_SYMBOL}")
  if(source)
    add_dependencies("${target}" "${source}")
  endif()
  target_include_directories(${target} BEFORE PRIVATE ${jitload_OWN_INCLUDE_DIRS})
endfunction()

# Generate a source file that contains the cubins, and add it to the target.
function(jitload_internal_embed_in_target)
  if(NOT TARGET "${ARG_TARGET}")
    message(FATAL_ERROR "${caller}: there is no target '${ARG_TARGET}'")
  endif()
  list(JOIN ARG_NAME "_" suffix)
  set(file "${CMAKE_CURRENT_BINARY_DIR}/${ARG_TARGET}_${suffix}_cubin.cc")
  add_custom_command(
    OUTPUT "${file}"
    COMMAND "${jitload_PYTHON}" -m jitload.cmake.cubin_source --output "${file}" ${options}
    DEPENDS ${files} ${ARG_DEPENDS}
    COMMENT "Embedding cubins into ${ARG_TARGET} (${ARG_NAME})"
    VERBATIM
  )
  # Assembler text defines the cubins' symbols, and link-time optimisation does not see what assembler text defines.
  set_source_files_properties("${file}" PROPERTIES COMPILE_OPTIONS "-fno-lto" SKIP_PRECOMPILE_HEADERS TRUE SKIP_UNITY_BUILD_INCLUSION TRUE)
  target_sources("${ARG_TARGET}" PRIVATE "${file}")
endfunction()

# Make one object file of a source file and its cubins. This is the older of tvm-ffi's two functions.
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

# Define `name`, which calls one of the functions above. Messages begin with this name.
function(jitload_internal_define name function)
  cmake_language(EVAL CODE "macro(${name})\n  ${function}(${name} ${ARGN} \${ARGV})\nendmacro()")
endfunction()

jitload_internal_define(jitload_generate_cubin jitload_internal_generate_cubin)
jitload_internal_define(jitload_embed_cubin jitload_internal_embed_cubin)
jitload_internal_define(tvm_ffi_generate_cubin jitload_internal_generate_cubin)
jitload_internal_define(tvm_ffi_embed_cubin jitload_internal_embed_cubin)
jitload_internal_define(add_tvm_ffi_cubin jitload_internal_binary_target cubin)
jitload_internal_define(add_tvm_ffi_fatbin jitload_internal_binary_target fatbin)
jitload_internal_define(tvm_ffi_embed_bin_into jitload_internal_embed_bin_into)

# The targets' names in tvm-ffi 0.1.6, which projects with the older functions use.
foreach(_jitload_name IN ITEMS header shared)
  if(TARGET tvm_ffi::${_jitload_name} AND NOT TARGET tvm_ffi_${_jitload_name})
    add_library(tvm_ffi_${_jitload_name} INTERFACE IMPORTED)
    target_link_libraries(tvm_ffi_${_jitload_name} INTERFACE tvm_ffi::${_jitload_name})
  endif()
endforeach()
