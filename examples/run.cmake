# Runs PROGRAM on CHECKPOINT; it must end with 0 and say SAYS.
execute_process(COMMAND ${PROGRAM} ${CHECKPOINT} OUTPUT_VARIABLE said ERROR_VARIABLE said RESULT_VARIABLE code)
message("${said}")
if(NOT code EQUAL 0)
  message(FATAL_ERROR "${PROGRAM} ended with ${code}")
elseif(NOT said MATCHES "${SAYS}")
  message(FATAL_ERROR "${PROGRAM} does not say '${SAYS}'")
endif()
