# cpack runs this before it makes the archives: no file is newer than SOURCE_DATE_EPOCH, so that
# the same sources make the same bytes.
if(NOT "$ENV{SOURCE_DATE_EPOCH}" STREQUAL "")
    execute_process(COMMAND find ${CPACK_TEMPORARY_DIRECTORY} -exec
                    touch --no-dereference --date=@$ENV{SOURCE_DATE_EPOCH} {} +
                    COMMAND_ERROR_IS_FATAL ANY)
endif()
