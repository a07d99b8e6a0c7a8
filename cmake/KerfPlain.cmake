# Files that exist twice: NAME.cc is written with a library that KERF_PORTABLE does without, NAME_plain.cc beside it in
# plain C++, with the same results. Takes from the list of files `list` those that this build leaves out.
function(kerf_choose_plain list)
  set(left_out ${${list}})
  list(FILTER left_out INCLUDE REGEX "_plain\\.cc$")
  if(KERF_PORTABLE)
    list(TRANSFORM left_out REPLACE "_plain\\.cc$" ".cc")
  endif()
  list(REMOVE_ITEM ${list} ${left_out})
  set(${list} ${${list}} PARENT_SCOPE)
endfunction()
