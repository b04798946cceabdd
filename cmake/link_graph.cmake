# Questions about what a target links, answered from the targets themselves.

# kvmesh_links(out target): all that `target` links, directly or through others.
function(kvmesh_links out target)
  set(seen "")
  set(waiting ${target})
  while(waiting)
    list(POP_FRONT waiting next)
    if(next IN_LIST seen)
      continue()
    endif()
    list(APPEND seen ${next})
    if(TARGET ${next})
      get_target_property(links ${next} INTERFACE_LINK_LIBRARIES)
      if(links)
        list(APPEND waiting ${links})
      endif()
    endif()
  endwhile()
  set(${out} ${seen} PARENT_SCOPE)
endfunction()

# kvmesh_instrumentable(out target): whether ThreadSanitizer sees all synchronization of what `target` links. Debian's
# gRPC, UCX and RocksDB are not instrumented, and report races that are none.
function(kvmesh_instrumentable out target)
  kvmesh_links(links ${target})
  list(FILTER links INCLUDE REGEX "^(gRPC::|kvmesh_rocksdb$|UCX|ucx)")
  if(links)
    set(${out} FALSE PARENT_SCOPE)
  else()
    set(${out} TRUE PARENT_SCOPE)
  endif()
endfunction()
