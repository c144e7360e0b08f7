"""psrun --convert FILE: a table of another program as a .csv file, which data.kind csv reads. By pandas."""
import json
import os

from .errors import JobError
from .screen import tell

# pandas' reader of each ending. Not pickles: whoever reads one runs what its author wrote.
READERS = {".parquet": "read_parquet", ".feather": "read_feather", ".arrow": "read_feather", ".orc": "read_orc",
           ".xlsx": "read_excel", ".xls": "read_excel", ".ods": "read_excel", ".json": "", ".jsonl": "",
           ".dta": "read_stata", ".sav": "read_spss", ".sas7bdat": "read_sas", ".html": "read_html", ".xml": "read_xml"}
EXCEL = {"sheet_name": None, "dtype": object}  # texts of digits stay texts
# Of these the first table is taken.
SEVERAL = {".xlsx": EXCEL, ".xls": EXCEL, ".ods": EXCEL, ".html": {}}
# Whole numbers beside empty cells stay whole numbers: with pandas 2; with pandas 1, which has it for Parquet alone.
WHOLE = ({"dtype_backend": "numpy_nullable"}, {"use_nullable_dtypes": True})
NUMBERS = {".parquet", ".feather", ".arrow", ".orc", ".html", ".xml"}  # where pandas makes floats of them otherwise
EXACT = 2 ** 53  # from here on floats do not tell all whole numbers apart


def convert(args):
    """Writes the .csv file beside FILE, or --out. Returns the exit code."""
    path = args.convert
    stem, ending = os.path.splitext(path)
    if ending.lower() not in READERS:
        raise JobError(f"--convert {path}: reads files that end in {', '.join(READERS)}; a text file with commas, "
                       "semicolons or tabs needs no conversion")
    if not os.path.isfile(path):
        raise JobError(f"--convert {path}: there is no such file")
    try:
        import pandas
    except ImportError:
        raise JobError("--convert needs pandas: apt-get install python3-pandas, or pip install pandas in a virtual "
                       "environment that is active") from None
    out = args.out or f"{stem}.csv"
    if os.path.isdir(out):
        raise JobError(f"--convert: {out} is a folder: name a .csv file with --out")
    if os.path.exists(out) and (os.path.samefile(out, path) or not args.overwrite):
        raise JobError(f"--convert: {out} is there already: name another with --out, or give --overwrite")
    table, note = _read(pandas, path, ending.lower())
    _write(table, out)
    tell(f"{out}: {len(table)} lines, {len(table.columns)} columns: {', '.join(map(str, table.columns[:20]))}{note}")
    return 0


def _read(pandas, path, ending):
    try:
        table = _read_json(pandas, path, ending) if not READERS[ending] else _read_exactly(pandas, path, ending)
    except JobError:
        raise
    except Exception as error:  # whatever a reader of pandas, or a library behind it, says
        text = str(error).strip() or type(error).__name__
        raise JobError(f"--convert {path}: {text.splitlines()[0]}") from None
    note = ""
    if ending in SEVERAL:
        tables = table if isinstance(table, dict) else dict(enumerate(table))
        if not tables:
            raise JobError(f"--convert {path}: holds no table")
        names = list(tables)
        table = tables[names[0]]
        note = f"\nonly the first table, {names[0]}; others: {', '.join(map(str, names[1:]))}" if names[1:] else ""
    if not isinstance(table, pandas.DataFrame) or not len(table.columns):
        raise JobError(f"--convert {path}: holds no table")
    return table.infer_objects() if SEVERAL.get(ending) is EXCEL else table, note  # dates without a time


def _read_json(pandas, path, ending):
    """As it stands there. pandas' own reader makes dates of the numbers in a column "created_at", and rounds ids."""
    with open(path, encoding="utf-8-sig") as f:
        rows = [json.loads(line) for line in f if line.strip()] if ending == ".jsonl" else json.load(f)
    return pandas.DataFrame(rows, dtype=object)


def _read_exactly(pandas, path, ending):
    """An id that is rounded would become another one's, without a word."""
    read, more = getattr(pandas, READERS[ending]), SEVERAL.get(ending, {})
    if ending not in NUMBERS:
        return read(path, **more)
    for whole in WHOLE:
        try:
            return read(path, **more, **whole)
        except TypeError:  # this reader, or this pandas, does not know it
            continue
    table = read(path, **more)
    for each in table if isinstance(table, list) else [table]:
        for name, column in each.items():
            if column.dtype == "float64" and column.isna().any() and column.abs().max() >= EXACT:
                raise JobError(f'--convert {path}: column "{name}" has whole numbers of more than 15 digits beside empty '
                               f"cells, which pandas {pandas.__version__} rounds: take pandas 2 or newer")
    return table


def _write(table, out):
    """An index that has a name is a column too."""
    unfinished = f"{out}.tmp"
    try:
        table.to_csv(unfinished, index=any(table.index.names))
        os.replace(unfinished, out)
    except OSError as error:
        if os.path.exists(unfinished):
            os.remove(unfinished)
        raise JobError(f"--convert: {out}: {error.strerror}") from None
