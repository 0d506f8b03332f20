//! [`Page`]: the page for people at `/`, as HTML that needs nothing else.
//!
//! It has no scripts: the browser loads it again every few seconds, and a reader of text sees the same.
//!
//! Invariants:
//! 1. All text is escaped by the methods that append it, so that no name of a partition or a node becomes markup.
//! 2. [`POLICY`] allows one style sheet, by its hash, and nothing else: no script, no image, no other host.

use std::fmt::Write;

/// The value of the header `Content-Security-Policy`. The hash is that of [`STYLE`]: `scripts/page.sh` compares it, and
/// a browser drops a style sheet with another one.
pub(crate) const POLICY: &str = "default-src 'none'; style-src 'sha256-/Uun7k8l6VmKv3sd1GkL5b/GN/7qlC814vwXYOS2h4s='; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The style sheet, without a line break, so that its hash is that of what `scripts/page.sh` reads.
const STYLE: &str = "body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:72em;padding:0 1em;color:#1c2330;background:#fbfbf9}h1{font-size:1.5em;margin:0}h2{font-size:1.1em;margin:1.6em 0 .4em}p{margin:.3em 0}.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}th,td{text-align:left;padding:.25em 1.4em .25em 0;border-bottom:1px solid #d9dce1;vertical-align:top;overflow-wrap:anywhere}th{font-weight:600;color:#56607a}.good,.bad{font-weight:600}.good{color:#14683a}.bad{color:#a3201c}@media(prefers-color-scheme:dark){body{color:#dfe3ea;background:#15181d}th,td{border-color:#343a45}th{color:#9aa5bd}.good{color:#6fcf97}.bad{color:#ff8a80}}";

/// Seconds after which a browser loads the page again.
const REFRESH_SECONDS: u32 = 2;

/// Rows of a table. A database may have thousands of partitions, and a page of all of them helps no one.
pub(crate) const ROWS_MAX: usize = 200;

/// A page that grows.
pub(crate) struct Page(String);

impl Page {
    pub(crate) fn new(title: &str) -> Page {
        let title = escaped(title);
        Page(format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n\
             <meta http-equiv=\"refresh\" content=\"{REFRESH_SECONDS}\">\n\
             <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
        ))
    }

    pub(crate) fn heading(&mut self, text: &str) {
        let _ = writeln!(self.0, "<h2>{}</h2>", escaped(text));
    }

    pub(crate) fn line(&mut self, text: &str) {
        let _ = writeln!(self.0, "<p>{}</p>", escaped(text));
    }

    /// A verdict: `good`, or the reasons why it is not.
    pub(crate) fn verdict(&mut self, good: &str, reasons: &[String]) {
        if reasons.is_empty() {
            let _ = writeln!(self.0, "<p class=\"good\">{}</p>", escaped(good));
        }
        for reason in reasons.iter().take(ROWS_MAX) {
            let _ = writeln!(self.0, "<p class=\"bad\">{}</p>", escaped(reason));
        }
        self.rest(reasons.len());
    }

    /// A table with these columns.
    pub(crate) fn table(&mut self, columns: &[&str], rows: &[Vec<String>]) {
        self.0.push_str("<div class=\"scroll\"><table>\n<tr>");
        for column in columns {
            let _ = write!(self.0, "<th>{}</th>", escaped(column));
        }
        self.0.push_str("</tr>\n");
        for row in rows.iter().take(ROWS_MAX) {
            self.0.push_str("<tr>");
            for cell in row {
                let _ = write!(self.0, "<td>{}</td>", escaped(cell));
            }
            self.0.push_str("</tr>\n");
        }
        self.0.push_str("</table></div>\n");
        self.rest(rows.len());
    }

    fn rest(&mut self, count: usize) {
        if count > ROWS_MAX {
            self.line(&format!("and {} more", count - ROWS_MAX));
        }
    }

    pub(crate) fn into_text(mut self) -> String {
        self.0.push_str("</body>\n</html>\n");
        self.0
    }
}

/// Text as the content of an element. Characters without a shape of their own, which could hide or turn around what follows,
/// are shown as escapes, and so is the backslash: two texts never look the same because of them.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\\' => out.push_str("\\\\"),
            ' '..='~' => out.push(character),
            _ if character.is_alphanumeric() => out.push(character),
            // After a letter: a mark that belongs to one is no escape.
            _ => out.extend(['a', character].iter().collect::<String>().escape_debug().skip(1)),
        }
    }
    out
}

/// A time in the unit that fits.
pub(crate) fn time(micros: f64) -> String {
    match micros {
        _ if micros < 1e3 => format!("{micros:.0} \u{b5}s"),
        _ if micros < 1e6 => format!("{:.1} ms", micros / 1e3),
        _ => format!("{:.1} s", micros / 1e6),
    }
}

/// A number of bytes in the unit that fits.
pub(crate) fn bytes(count: u64) -> String {
    let mut size = count as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if size < 1024.0 {
            return if unit == "B" { format!("{count} B") } else { format!("{size:.1} {unit}") };
        }
        size /= 1024.0;
    }
    format!("{size:.1} TiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_becomes_markup() {
        let text = "<script>alert(\"1\")</script>&'\n\u{202e}\u{7}";
        let mut page = Page::new(text);
        page.heading(text);
        page.line(text);
        page.verdict(text, &[]);
        page.verdict("good", &[text.to_owned()]);
        page.table(&[text], &[vec![text.to_owned()]]);
        let html = page.into_text();
        let safe = "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&amp;&#39;\\n\\u{202e}\\u{7}";
        assert_eq!(html.matches(safe).count(), 8, "{html}");
        assert!(!html.contains("<script") && !html.contains('\u{202e}'), "{html}");
    }

    #[test]
    fn what_cannot_be_seen_is_shown() {
        for hidden in
            ["\u{61c}", "\u{ad}", "\u{200b}", "\u{2060}", "\u{feff}", "\u{2028}", "\u{a0}"]
        {
            let shown = escaped(&format!("a{hidden}b"));
            assert!(shown.starts_with("a\\u{") && shown.ends_with("}b"), "{shown}");
        }
        // The text of an escape is not the character.
        assert_eq!(escaped("a\\u{ad}b"), "a\\\\u{ad}b");
        for seen in [
            "caf\u{e9}",
            "e\u{301}",
            "\u{928}\u{92e}\u{938}\u{94d}\u{924}\u{947}",
            "1.5 \u{b5}s / 2",
        ] {
            assert_eq!(escaped(seen), seen);
        }
    }

    #[test]
    fn long_tables_end_with_the_number_of_the_rest() {
        let mut page = Page::new("a");
        page.table(&["n"], &vec![vec!["row".to_owned()]; ROWS_MAX + 7]);
        let html = page.into_text();
        assert_eq!(html.matches("<td>row</td>").count(), ROWS_MAX);
        assert!(html.contains("<p>and 7 more</p>"));
    }

    #[test]
    fn numbers_have_the_unit_that_fits() {
        let times = [999.0, 1_500.0, 2_500_000.0].map(time);
        assert_eq!(times, ["999 \u{b5}s", "1.5 ms", "2.5 s"]);
        let sizes = [1023, 1536, 5 << 30, 3 << 40].map(bytes);
        assert_eq!(sizes, ["1023 B", "1.5 KiB", "5.0 GiB", "3.0 TiB"]);
    }
}
