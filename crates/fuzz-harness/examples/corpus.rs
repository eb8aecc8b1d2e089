//! Writes valid encodings as the fuzzers' first inputs: `cargo run -p larder-fuzz-harness --example corpus`.

use std::path::Path;

fn main() -> std::io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for decoder in larder_fuzz_harness::ALL {
        let folder = corpus.join(decoder.name);
        std::fs::create_dir_all(&folder)?;
        for (i, seed) in (decoder.seeds)().iter().enumerate() {
            std::fs::write(folder.join(format!("valid-{i}")), seed)?;
        }
    }
    Ok(())
}
