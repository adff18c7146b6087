package fit

// Likelihood is tested against a closed form.
var Likelihood = likelihood
