# The version is that of the Python package. docs/cpp.md says what a project may rely on.
file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/../__init__.py" _jitload_line REGEX "^__version__ = ")
string(REGEX REPLACE "^[^\"]*\"([0-9.]+).*$" "\\1" PACKAGE_VERSION "${_jitload_line}")
if(NOT PACKAGE_FIND_VERSION OR NOT PACKAGE_VERSION VERSION_LESS PACKAGE_FIND_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
if(PACKAGE_FIND_VERSION STREQUAL PACKAGE_VERSION)
  set(PACKAGE_VERSION_EXACT TRUE)
endif()
