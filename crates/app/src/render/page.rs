//! Common parts of the pages that commands write: each is one file, and nothing on it comes from elsewhere.

/// Text as it stands in HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A page: its title, text in its body as HTML, and more of its style.
pub fn page(title: &str, style: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'><title>{title}</title>\n<style>
:root {{ color-scheme: light dark }}
body {{ font: 15px sans-serif; margin: 2em auto; max-width: 1060px; padding: 0 1em }}
svg {{ width: 100%; height: auto }}
pre {{ overflow-x: auto; font-size: 13px }}
{style}</style></head><body>
{body}</body></html>\n"
    )
}
