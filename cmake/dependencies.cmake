# Every external library of the tree, as imported targets. All come from Debian packages (deploy/install_deps.sh).
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(Eigen3 REQUIRED NO_MODULE)
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(PkgConfig REQUIRED)

pkg_check_modules(LIBURING REQUIRED IMPORTED_TARGET liburing)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)

# RocksDB's own package file asks for libraries that only its static archive needs.
find_library(ROCKSDB_LIBRARY rocksdb REQUIRED)
add_library(kvmesh_rocksdb INTERFACE)
target_link_libraries(kvmesh_rocksdb INTERFACE ${ROCKSDB_LIBRARY})

find_library(CIVETWEB_LIBRARY civetweb REQUIRED)
add_library(kvmesh_civetweb INTERFACE)
target_link_libraries(kvmesh_civetweb INTERFACE ${CIVETWEB_LIBRARY})

set(KVMESH_PROTOC_GRPC_PLUGIN $<TARGET_FILE:gRPC::grpc_cpp_plugin>)
