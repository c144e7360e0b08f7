# cpack runs this before it makes the archives. Manual pages are compressed, as Debian wants them. No
# file is newer than SOURCE_DATE_EPOCH, so that the same sources make the same bytes.
execute_process(COMMAND find ${CPACK_TEMPORARY_DIRECTORY} -path */man/man1/*.1 -exec gzip -9nf {} +
                COMMAND_ERROR_IS_FATAL ANY)
if(NOT "$ENV{SOURCE_DATE_EPOCH}" STREQUAL "")
    execute_process(COMMAND find ${CPACK_TEMPORARY_DIRECTORY} -exec
                    touch --no-dereference --date=@$ENV{SOURCE_DATE_EPOCH} {} +
                    COMMAND_ERROR_IS_FATAL ANY)
endif()
