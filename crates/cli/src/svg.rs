//! The frame of a drawing: one file that needs no other, with its own colours for dark and light
//! surroundings.

use std::path::Path;

use crate::output::Failure;

/// The colours that every drawing has: text, paper and rules.
const STYLE: &str = "\
text{font:12px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#1f2933}\
.paper{fill:#ffffff}.name{font-weight:600}.rule{stroke:#d5dae0;stroke-width:1}\
@media(prefers-color-scheme:dark){text{fill:#e4e8ec}.paper{fill:#16191d}.rule{stroke:#343b43}}";

/// The drawing with this content; `style` has its own classes. The title is well-formed XML.
pub(crate) fn page(title: &str, style: &str, width: f64, height: f64, body: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height:.1}\" \
         width=\"{width}\" height=\"{height:.1}\" role=\"img\">\n\
         <title>{title}</title>\n<style>{STYLE}{style}</style>\n\
         <rect class=\"paper\" width=\"{width}\" height=\"{height:.1}\"/>\n{body}</svg>\n"
    )
}

/// Writes a drawing to a file.
#[expect(clippy::disallowed_methods, reason = "the file is outside every database")]
pub(crate) fn save(path: &Path, drawing: &str) -> Result<(), Failure> {
    std::fs::write(path, drawing).map_err(|e| Failure::io("write", path, &e))
}
