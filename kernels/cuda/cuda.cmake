# The CUDA kernels, target kvmesh_kernels_cuda: with nvcc a library, without it the headers whose bodies the host tests
# run. Nothing else of the tree links the CUDA runtime.
option(KVMESH_CUDA "Build the CUDA kernels where nvcc is found" ON)
option(KVMESH_CUDA_FULL "All formats and head dimensions of attention, for sm_80 and sm_90" OFF)
set(KVMESH_HAVE_CUDA OFF)
if(KVMESH_CUDA)
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(KVMESH_NVCC nvcc PATHS /usr/local/cuda/bin)
    if(KVMESH_NVCC)
      set(ENV{CUDACXX} ${KVMESH_NVCC})
    endif()
  endif()
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    if(KVMESH_CUDA_FULL)
      set(CMAKE_CUDA_ARCHITECTURES 80 90)
    else()
      set(CMAKE_CUDA_ARCHITECTURES 90)
    endif()
  endif()
  # nvcc hands host code to this build's compiler; where it takes another, or cannot work, there are no CUDA kernels.
  if(NOT CMAKE_CUDA_HOST_COMPILER)
    set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit QUIET)
    if(CUDAToolkit_FOUND)
      set(KVMESH_HAVE_CUDA ON)
    endif()
  endif()
endif()

if(KVMESH_HAVE_CUDA)
  # CMake 3.25 does not know this flag of every nvcc that has it.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  if(KVMESH_CCACHE)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${KVMESH_CCACHE})
  endif()
  add_library(kvmesh_kernels_cuda STATIC cuda/append.cu cuda/attention.cu cuda/attention_one_byte.cu
                                         cuda/attention_two_byte.cu cuda/block_bytes.cu cuda/states.cu)
  # nvcc does not take the tree's options for g++ as they are.
  set_property(TARGET kvmesh_kernels_cuda PROPERTY COMPILE_OPTIONS "")
  # A product and a sum are fused only where it is written, as on the CPU. Constant expressions run on the device too.
  target_compile_options(
    kvmesh_kernels_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false --expt-relaxed-constexpr
                                -Xcompiler=-Wall,-Wextra,-Werror,-Wno-missing-field-initializers>)
  target_link_libraries(kvmesh_kernels_cuda PUBLIC kvmesh_kernels CUDA::cudart_static)
  target_compile_definitions(kvmesh_kernels_cuda PUBLIC KVMESH_HAVE_CUDA=1)
  if(KVMESH_CUDA_FULL)
    target_compile_definitions(kvmesh_kernels_cuda PRIVATE KVMESH_CUDA_FULL=1)
  endif()

  # What the tests and the checking program share; and that program, which needs no GoogleTest.
  add_library(kvmesh_kernels_cuda_check STATIC cuda/check/attention_checks.cc cuda/check/row_checks.cc)
  target_link_libraries(kvmesh_kernels_cuda_check PUBLIC kvmesh_kernels_cuda)
  add_executable(check_kernels_cuda cuda/check/check_main.cc cuda/check/timing.cu)
  set_property(TARGET check_kernels_cuda PROPERTY COMPILE_OPTIONS "")
  target_compile_options(
    check_kernels_cuda
    PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Werror -Wno-missing-field-initializers>
            $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra,-Werror,-Wno-missing-field-initializers>)
  target_link_libraries(check_kernels_cuda PRIVATE kvmesh_kernels_cuda_check)
else()
  add_library(kvmesh_kernels_cuda INTERFACE)
  target_link_libraries(kvmesh_kernels_cuda INTERFACE kvmesh_kernels)
endif()

# Alone; in the tree, tests/CMakeLists.txt does it.
if(KVMESH_KERNELS_TESTS)
  file(GLOB cuda_tests CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/../tests/unit/kernels/cuda/*_test.cc)
  add_executable(kernels_cuda_test ${cuda_tests})
  target_compile_options(kernels_cuda_test PRIVATE -Wall -Wextra -Werror)
  target_link_libraries(kernels_cuda_test PRIVATE $<TARGET_NAME_IF_EXISTS:kvmesh_kernels_cuda_check> kvmesh_kernels_cuda
                                                  GTest::gmock GTest::gtest_main Threads::Threads)
  add_test(NAME unit/kernels/cuda COMMAND kernels_cuda_test)
endif()
