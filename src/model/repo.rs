//! A model of the hub: how it is named, and which files of its repository make it.
//!
//! Pure. Owns [`HubModel`] and the choice between a directory of safetensors and a GGUF file. Deliberately absent:
//! fetching, and what the engine can run.

use std::fmt;

use crate::hf::is_repo;

/// Says what a model is.
pub const CONFIG: &str = "config.json";
/// Says which files hold the weights, where there are several.
const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
/// What stands beside the weights of a directory and is read by somebody here.
const BESIDE: [&str; 8] = [
    CONFIG,
    INDEX,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
];
const MORE_TEMPLATES: &str = "additional_chat_templates/";

/// A model as it is typed: `owner/name`, or `owner/name:file.gguf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    /// `owner/name`.
    pub repo: String,
    /// The GGUF file, if one was named.
    pub gguf: Option<String>,
}

impl HubModel {
    /// Reads a name; none when it cannot be one.
    pub fn parse(text: &str) -> Option<Self> {
        let (repo, gguf) = text.split_once(':').map_or((text, None), |(repo, file)| (repo, Some(file)));
        let is_name = is_repo(repo) && gguf.is_none_or(is_gguf);
        is_name.then(|| Self { repo: repo.to_owned(), gguf: gguf.map(str::to_owned) })
    }
}

impl fmt::Display for HubModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.gguf {
            Some(file) => write!(f, "{}:{file}", self.repo),
            None => f.write_str(&self.repo),
        }
    }
}

/// What of a repository is the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// Its safetensors, with what stands beside them.
    Directory,
    /// One file that holds everything.
    Gguf(String),
}

/// Why a repository holds no model that could be fetched.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoForm {
    /// Nothing that is read here.
    #[error("{repo} has neither {CONFIG} with safetensors nor a GGUF file")]
    Neither { repo: String },
    /// More than one, and none was named.
    #[error("{repo} has no safetensors but {} GGUF files: {}", files.len(), files.join(", "))]
    Several { repo: String, files: Vec<String> },
    /// Another file was named than there is.
    #[error("{repo} has no {file}; its GGUF files are: {}", files.join(", "))]
    Missing { repo: String, file: String, files: Vec<String> },
}

impl NoForm {
    /// What to do about it.
    pub fn help(&self) -> String {
        match self {
            Self::Several { repo, files } | Self::Missing { repo, files, .. } if !files.is_empty() => {
                format!("name one of them, as in `backsight model pull {repo}:{}`", files[0])
            }
            _ => {
                "name another repository: config.json with safetensors, or a GGUF file in one piece, is read"
                    .to_owned()
            }
        }
    }
}

/// What of a repository with these files is the model.
pub fn form(model: &HubModel, files: &[String]) -> Result<Form, NoForm> {
    let repo = model.repo.clone();
    let has = |name: &str| files.iter().any(|file| file == name);
    let mut ggufs: Vec<String> = files.iter().filter(|file| is_gguf(file)).cloned().collect();
    match (&model.gguf, ggufs.len()) {
        (Some(file), _) if ggufs.contains(file) => Ok(Form::Gguf(file.clone())),
        (Some(file), _) => Err(NoForm::Missing { repo, file: file.clone(), files: ggufs }),
        (None, _) if has(CONFIG) && (has(INDEX) || has(SINGLE)) => Ok(Form::Directory),
        (None, 0) => Err(NoForm::Neither { repo }),
        (None, 1) => Ok(Form::Gguf(ggufs.remove(0))),
        (None, _) => Err(NoForm::Several { repo, files: ggufs }),
    }
}

/// The files that stand beside the weights of a directory.
pub fn beside(files: &[String]) -> impl Iterator<Item = &String> {
    let is_template = |file: &str| file.starts_with(MORE_TEMPLATES) && file.ends_with(".jinja");
    files.iter().filter(move |file| BESIDE.contains(&file.as_str()) || is_template(file))
}

/// Whether a file is a model in GGUF. One of several parts is not: they are not read together.
pub fn is_gguf(file: &str) -> bool {
    file.strip_suffix(".gguf").is_some_and(|stem| !stem.is_empty() && !is_part(stem))
}

/// Whether a name ends as in `-00001-of-00003`.
fn is_part(stem: &str) -> bool {
    let is_number = |word: &str| word.len() == 5 && word.bytes().all(|byte| byte.is_ascii_digit());
    let mut words = stem.rsplit('-');
    words.next().is_some_and(is_number) && words.next() == Some("of") && words.next().is_some_and(is_number)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written_back() {
        for name in ["o/m", "acme/Tiny-1.5B", "o/m:m.gguf", "o/m:Q4/m-q4_k_m.gguf"] {
            assert_eq!(HubModel::parse(name).unwrap().to_string(), name);
        }
        for no_name in
            ["m", "o/m/n", "./m", "o/m:", "o/m:x.bin", "o/m:.gguf", "o/m:x-00001-of-00002.gguf", "C:x.gguf"]
        {
            assert_eq!(HubModel::parse(no_name), None, "{no_name}");
        }
    }

    fn check(name: &str, files: &str, expected: Result<Form, &str>) {
        let files: Vec<String> = files.split(' ').map(str::to_owned).collect();
        let found =
            form(&HubModel::parse(name).unwrap(), &files).map_err(|why| format!("{why} | {}", why.help()));
        assert_eq!(found, expected.map_err(str::to_owned), "{name} of {files:?}");
    }

    #[test]
    fn a_repository_is_a_directory_or_one_gguf_file() {
        let gguf = |file: &str| Ok(Form::Gguf(file.to_owned()));
        check("o/m", "README.md config.json model.safetensors", Ok(Form::Directory));
        check("o/m", "config.json model.safetensors.index.json a.gguf", Ok(Form::Directory));
        check("o/m:a.gguf", "config.json model.safetensors a.gguf", gguf("a.gguf"));
        check("o/m", "config.json a.gguf", gguf("a.gguf"));
        check("o/m", "a.gguf b-00001-of-00002.gguf b-00002-of-00002.gguf", gguf("a.gguf"));
        let again = "as in `backsight model pull o/m:a.gguf`";
        let why =
            format!("o/m has no safetensors but 2 GGUF files: a.gguf, b.gguf | name one of them, {again}");
        check("o/m", "a.gguf b.gguf", Err(&why));
        let why = format!("o/m has no c.gguf; its GGUF files are: a.gguf | name one of them, {again}");
        check("o/m:c.gguf", "a.gguf", Err(&why));
        let why = "o/m has neither config.json with safetensors nor a GGUF file | name another repository: \
                   config.json with safetensors, or a GGUF file in one piece, is read";
        check("o/m", "config.json pytorch_model.bin", Err(why));
    }

    #[test]
    fn what_is_read_is_fetched_and_nothing_else() {
        let files = ["README.md", "config.json", "model.safetensors", "tokenizer.json", "tokenizer.model"];
        let files = files.into_iter().chain(["additional_chat_templates/tool_use.jinja", "onnx/model.onnx"]);
        let files: Vec<String> = files.map(str::to_owned).collect();
        let found: Vec<&String> = beside(&files).collect();
        assert_eq!(found, ["config.json", "tokenizer.json", "additional_chat_templates/tool_use.jinja"]);
    }
}
