/* The page (page.html): a whole HTML document, without any resource outside it. */
#ifndef PS_PAGE_H
#define PS_PAGE_H

extern const char ps_page_html[];

#endif
