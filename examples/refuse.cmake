# Runs PROGRAM with what it cannot use: each ends with an exit code of its own and one line of words, and never by a
# signal. OTHER is a checkpoint without NVFP4 experts, with which it must end with CODE.
function(refuses code words)
  execute_process(COMMAND ${PROGRAM} ${ARGN} OUTPUT_QUIET ERROR_VARIABLE said RESULT_VARIABLE ended)
  if(NOT ended STREQUAL code OR NOT said MATCHES "^[^\n]*${words}[^\n]*\n$")
    message(FATAL_ERROR "${PROGRAM} ${ARGN}: ended with ${ended}, wanted ${code} and '${words}', and said:\n${said}")
  endif()
endfunction()

refuses(2 "usage: ${NAME} CHECKPOINT")
refuses(2 "usage: ${NAME} CHECKPOINT" ${OTHER} ${OTHER})
refuses(3 "no such directory" ${OTHER}/missing)
refuses(3 "config.json" ${CMAKE_CURRENT_LIST_DIR})
if(NOT CODE EQUAL 0)
  refuses(${CODE} "(NVFP4 experts|quantised rows)" ${OTHER})
endif()
