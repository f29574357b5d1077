//! The pages, in the program: nothing is loaded from elsewhere.

use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::refused;

macro_rules! files {
    ($($name:literal: $kind:expr;)+) => {
        /// Name, type and contents.
        const FILES: &[(&str, &str, &[u8])] = &[
            $(($name, $kind, include_bytes!(concat!("../assets/", $name))),)+
        ];
    };
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

files! {
    "index.html": HTML;
    "style.css": CSS;
    "icon.svg": "image/svg+xml";
    "app.js": SCRIPT;
    "chart.js": SCRIPT;
    "page.js": SCRIPT;
    "server.js": SCRIPT;
    "site.js": SCRIPT;
    "hub.js": SCRIPT;
    "balance.js": SCRIPT;
    "sdn.js": SCRIPT;
    "uplot/uPlot.iife.min.js": SCRIPT;
    "uplot/uPlot.min.css": CSS;
    "uplot/LICENSE": "text/plain; charset=utf-8";
}

/// The file of this name.
pub fn answer(name: &str) -> Response {
    match FILES.iter().find(|file| file.0 == name) {
        Some((_, kind, contents)) => ([(header::CONTENT_TYPE, *kind)], *contents).into_response(),
        None => refused(StatusCode::NOT_FOUND, "there is no such file"),
    }
}

/// `GET /assets/NAME`.
pub async fn get(Path(name): Path<String>) -> Response {
    answer(&name)
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use ropewalk_crypto::digest;

    use super::*;

    #[test]
    fn pages_have_no_script_or_style_inside_and_load_nothing_from_elsewhere() {
        for (name, _, contents) in FILES.iter().filter(|file| !file.0.starts_with("uplot/")) {
            let text = std::str::from_utf8(contents).unwrap();
            for bad in [
                "<style",
                " style=\"",
                "javascript:",
                "https://",
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "eval(",
            ] {
                assert!(!text.contains(bad), "{name}: {bad}");
            }
            assert!(!text.contains(" onclick="), "{name}");
            // A script has a source and nothing inside, but for the one that the policy names.
            for script in text.split("<script").skip(1) {
                let policy = crate::access::POLICY;
                let inside = script
                    .strip_prefix('>')
                    .and_then(|it| it.split_once("</script>"));
                match inside {
                    Some((inside, _)) => {
                        let hash = digest::digest(&digest::SHA256, inside.as_bytes());
                        let hash = format!("'sha256-{}'", STANDARD.encode(hash));
                        assert!(policy.contains(&hash), "{name}: {hash}: {policy}");
                    }
                    None => assert!(
                        script.contains("src=\"/assets/") && script.contains("></script>"),
                        "{name}"
                    ),
                }
            }
        }
    }

    #[test]
    fn all_files_together_stay_small() {
        let bytes: usize = FILES.iter().map(|file| file.2.len()).sum();
        assert!(bytes < 150_000, "{bytes} bytes");
    }
}
