# cmake -DIN=page.html -DOUT=page_html.c -P embed.cmake: the file as a C string.
file(READ ${IN} bytes HEX)
string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)" "    \\1\n"
       bytes "${bytes}")
file(WRITE ${OUT} "/* Made from ${NAME}. */
#include \"page.h\"

const char ps_page_html[] = {
${bytes}0x00};
")
