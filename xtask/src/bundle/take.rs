//! Takes the profiles that a GPU's machine has left: one file for the card, so that machines without
//! one simulate it.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value};

/// Writes `workloads/profiles/NAME.json` from `FOLDER/profiles/*.json`; without a name that of the
/// card which they are of.
///
/// # Errors
/// A folder whose run found no GPU, without profiles, or with those of different devices.
pub fn take(root: &Path, folder: &Path, name: Option<&str>) -> Result<bool> {
    let name = match name {
        Some(name) => name.to_owned(),
        None => card(folder)?,
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-';
    ensure!(
        !name.is_empty() && name.chars().all(is_name),
        "expected a name of letters, digits and dashes, got `{name}`"
    );
    let said = read(&folder.join("GPU.txt"))?;
    ensure!(
        said.starts_with("GPU: yes"),
        "{}: expected results of a GPU, got {}",
        folder.display(),
        said.trim()
    );
    let merged = merged(&folder.join("profiles"))?;
    let to = root.join(format!("workloads/profiles/{name}.json"));
    let text = serde_json::to_string_pretty(&merged)? + "\n";
    std::fs::write(&to, text).with_context(|| to.display().to_string())?;
    let models = merged["models"].as_array().into_iter().flatten();
    let names: Vec<&str> = models.filter_map(|m| m["name"].as_str()).collect();
    println!("{}: {}", to.display(), names.join(", "));
    Ok(true)
}

/// The name of a run's card as a file has it: `h200` of `NVIDIA H200`.
fn card(folder: &Path) -> Result<String> {
    let file = folder.join("environment.json");
    let text = read(&file)?;
    let environment: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
    let device = environment["device"].as_str().unwrap_or_default();
    let words = device.split(|c: char| !c.is_ascii_alphanumeric());
    let words = words.map(str::to_ascii_lowercase);
    let words: Vec<String> = words.filter(|w| !w.is_empty() && w != "nvidia").collect();
    ensure!(
        !words.is_empty(),
        "{}: expected the name of a card, got `{device}`",
        file.display()
    );
    Ok(words.join("-"))
}

fn read(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).with_context(|| file.display().to_string())
}

/// All profiles of a folder as one, models by name. What belongs to the device and not to a model is
/// the mean of what each file says.
fn merged(folder: &Path) -> Result<Value> {
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut files = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    files.retain(|file| file.extension().is_some_and(|e| e == "json"));
    files.sort();
    let mut all = Vec::new();
    for file in &files {
        let text = read(file)?;
        let profile: Value =
            serde_json::from_str(&text).with_context(|| file.display().to_string())?;
        ensure!(
            profile["format"] == "lazybatch-profile/1" && profile["models"].is_array(),
            "{}: expected a lazybatch-profile/1 document",
            file.display()
        );
        all.push(profile);
    }
    let Some(first) = all.first() else {
        bail!("{}: expected profiles, got none", folder.display());
    };
    let mut merged = Map::new();
    for key in ["format", "device"] {
        for (profile, file) in all.iter().zip(&files) {
            ensure!(
                profile[key] == first[key],
                "{}: expected the {key} {}, got {}",
                file.display(),
                first[key],
                profile[key]
            );
        }
        merged.insert(key.to_owned(), first[key].clone());
    }
    for key in ["copy_gbps", "dispatch_us", "issue_us"] {
        let given: Vec<f64> = all.iter().filter_map(|p| p[key].as_f64()).collect();
        if !given.is_empty() {
            let mean = given.iter().sum::<f64>() / given.len() as f64;
            merged.insert(key.to_owned(), ((mean * 1e3).round() / 1e3).into());
        }
    }
    let models = all.iter().filter_map(|p| p["models"].as_array()).flatten();
    merged.insert("models".into(), models.cloned().collect());
    Ok(Value::Object(merged))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(said: &str, profiles: &[(&str, Value)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("GPU.txt"), said).unwrap();
        std::fs::create_dir(folder.path().join("profiles")).unwrap();
        for (name, profile) in profiles {
            let file = folder.path().join(format!("profiles/{name}.json"));
            std::fs::write(file, profile.to_string()).unwrap();
        }
        folder
    }

    fn profile(device: &str, model: &str, issue_us: f64) -> Value {
        serde_json::json!({
            "format": "lazybatch-profile/1", "device": device, "issue_us": issue_us,
            "models": [{"name": model, "blocks": []}],
        })
    }

    #[test]
    fn profiles_become_one_file() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("workloads/profiles")).unwrap();
        let (a, b) = (profile("gpu", "a", 4.0), profile("gpu", "b", 5.0));
        let folder = results("GPU: yes\n", &[("b", b), ("a", a)]);
        assert!(take(root.path(), folder.path(), Some("h200")).unwrap());
        let text = read(&root.path().join("workloads/profiles/h200.json")).unwrap();
        let got: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(got["device"], "gpu");
        assert_eq!(got["issue_us"], 4.5);
        assert!(got.get("dispatch_us").is_none());
        assert_eq!(got["models"][0]["name"], "a");
        assert_eq!(got["models"][1]["name"], "b");
    }

    #[test]
    fn a_file_has_the_name_of_its_card() {
        let root = tempfile::tempdir().unwrap();
        let profiles = root.path().join("workloads/profiles");
        std::fs::create_dir_all(&profiles).unwrap();
        for (device, file) in [
            ("NVIDIA H200", "h200.json"),
            ("NVIDIA H100 80GB HBM3", "h100-80gb-hbm3.json"),
        ] {
            let folder = results("GPU: yes\n", &[("a", profile("gpu", "a", 4.0))]);
            assert!(take(root.path(), folder.path(), None).is_err());
            let environment = serde_json::json!({ "device": device }).to_string();
            std::fs::write(folder.path().join("environment.json"), environment).unwrap();
            assert!(take(root.path(), folder.path(), None).unwrap());
            assert!(profiles.join(file).is_file());
        }
    }

    #[test]
    fn what_is_no_result_of_a_gpu_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let refused = |said: &str, profiles: &[(&str, Value)], name: &str| {
            let folder = results(said, profiles);
            let error = take(root.path(), folder.path(), Some(name)).unwrap_err();
            format!("{error:#}")
        };
        let one = [("a", profile("gpu", "a", 4.0))];
        let words = refused("GPU: no. Nothing in this folder", &one, "h200");
        assert!(
            words.contains("expected results of a GPU, got GPU: no."),
            "{words}"
        );
        let words = refused("GPU: yes\n", &[], "h200");
        assert!(words.contains("expected profiles, got none"), "{words}");
        let words = refused("GPU: yes\n", &one, "../h200");
        assert!(words.contains("got `../h200`"), "{words}");
        let two = [one[0].clone(), ("b", profile("other", "b", 4.0))];
        let words = refused("GPU: yes\n", &two, "h200");
        assert!(
            words.contains("expected the device \"gpu\", got \"other\""),
            "{words}"
        );
        let dry = [("a", serde_json::json!({"dry": true}))];
        let words = refused("GPU: yes\n", &dry, "h200");
        assert!(words.contains("lazybatch-profile/1"), "{words}");
    }
}
